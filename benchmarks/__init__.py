"""Speed and memory of Jacobian products: dnn2gp beside its peers. `make bench` runs it."""

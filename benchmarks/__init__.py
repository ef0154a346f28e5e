"""Speed and memory of Jacobian products: dnn2gp compared with its peers. `make bench` runs it."""

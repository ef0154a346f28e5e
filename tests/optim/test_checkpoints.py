"""Checkpoints: any tree of tensors and plain values, whole or not at all."""

from __future__ import annotations

import pytest
import torch
from optimizing import fresh

from dnn2gp import VOGN
from dnn2gp.optim import load_checkpoint, save_checkpoint
from dnn2gp.support.errors import FileFormatError, InputError


def test_checkpoints_hold_trees_and_nothing_else(tmp_path):
    path = tmp_path / "tree.safetensors"
    tree = {"a": [1, 2.5, None, True, "word", (3, torch.arange(3))], "b": {0: {"c": torch.eye(2)}, 1: {}}}
    save_checkpoint(path, tree)
    found = load_checkpoint(path)
    assert found["a"][:5] == tree["a"][:5]
    assert isinstance(found["a"][5], tuple)
    assert torch.equal(found["a"][5][1], torch.arange(3))
    assert torch.equal(found["b"][0]["c"], torch.eye(2))
    with pytest.raises(InputError, match=r"checkpoint\['x'\]"):
        save_checkpoint(path, {"x": object()})
    assert load_checkpoint(path)["a"][0] == 1  # the old one is whole
    path.write_bytes(path.read_bytes()[:50])
    with pytest.raises(FileFormatError, match="checkpoint"):
        load_checkpoint(path)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("precision", 3),
        ("precision", torch.ones(2)),
        ("momentum", torch.ones(2, dtype=torch.int64)),
        ("momentum", None),
        ("momentum_weight", "x"),
        ("momentum_weight", float("nan")),
        ("step", 1.5),
        ("step", -1),
        ("generator", torch.zeros(5, dtype=torch.uint8)),
        ("generator", "seed"),
    ],
)
def test_states_of_an_optimizer_that_are_none(name, value):
    optimizer, *_ = fresh(VOGN)
    state = optimizer.state_dict()
    (key,) = [key for key, own in state.items() if isinstance(own, dict) and "momentum_weight" in own]
    with pytest.raises(FileFormatError, match=name):
        optimizer.load_state_dict({**state, key: {**state[key], name: value}})
    not_finite = {**state[key], "precision": state[key]["precision"] * torch.nan}
    with pytest.raises(FileFormatError, match="precision"):
        optimizer.load_state_dict({**state, key: not_finite})
    optimizer.load_state_dict(state)

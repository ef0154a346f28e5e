"""The memory budget: half of what is free, also inside a container."""

from __future__ import annotations

import sys

import psutil

from dnn2gp.support.memory import _container_limit, chunks, default_budget, readable


def test_default_is_at_most_half_of_the_free_memory():
    assert 0 < default_budget() <= psutil.virtual_memory().total / 2


def test_the_limit_of_a_container_counts(tmp_path):
    assert _container_limit(tmp_path) == sys.maxsize  # no control group
    (tmp_path / "memory.max").write_text("max\n")
    (tmp_path / "memory.current").write_text("400\n")
    (tmp_path / "memory.stat").write_text("anon 150\ninactive_file 0\n")
    assert _container_limit(tmp_path) == sys.maxsize
    (tmp_path / "memory.max").write_text("1000\n")
    assert _container_limit(tmp_path) == 600
    (tmp_path / "memory.stat").write_text("anon 150\ninactive_file 250\n")  # cached files can be given up
    assert _container_limit(tmp_path) == 850
    (tmp_path / "memory.max").write_text("100\n")
    assert _container_limit(tmp_path) == 0


def test_chunks_cover_all_once():
    assert [list(range(10))[part] for part in chunks(10, 4)] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]


def test_sizes_in_words():
    assert [readable(n) for n in (5, 1500, 2.5e9, 7e12, 7e15)] == ["5 B", "1.5 kB", "2.5 GB", "7 TB", "7e+03 TB"]

"""The paper's experiments: a frozen config with presets, and run(config) -> result."""

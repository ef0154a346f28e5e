"""One file per figure: its settings, its run, its claims."""

"""Run the blocks of a document, each [lines before it, source], in one namespace: `document.py NAME BLOCKS.json`."""

import json
import sys
import warnings
from pathlib import Path

warnings.filterwarnings("error", category=DeprecationWarning, module="dnn2gp")
name, file = sys.argv[1:]
namespace = {"__name__": "document"}
sys.modules["document"] = type(sys)("document")
for start, block in json.loads(Path(file).read_text("utf-8")):
    exec(compile("\n" * start + block, name, "exec"), namespace)

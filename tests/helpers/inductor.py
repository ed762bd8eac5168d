"""Which tests compile for this processor, and where PyTorch's own compiler cannot."""

from __future__ import annotations

import os
import shutil

import pytest


def why_not() -> str:
    """Why nothing can be compiled here; empty where it can."""
    if shutil.which("c++") is None or shutil.which("g++") is None:
        return "Inductor compiles C++: no compiler here"
    if os.environ.get("ATEN_CPU_CAPABILITY") == "default":
        return "Inductor fails inside PyTorch under ATEN_CPU_CAPABILITY=default"
    return ""


needs_inductor = pytest.mark.skipif(bool(why_not()), reason=why_not() or "Inductor works")

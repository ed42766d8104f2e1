"""The surface of libspecc that programs are compiled against: exported functions and sizes of structs.

A change here is a change of the ABI: it comes with a new SPECC_VERSION and an entry in CHANGELOG.md.
"""

from __future__ import annotations

import platform
import re
import shutil
import subprocess

import pytest

from specc.runtime import Library, controls, library
from specc.runtime._ffi import HEADERS, STRUCTS, find_file, header_text

FUNCTIONS = {
    "specc.h": """
        specc_last_error specc_version specc_sizeof specc_reason_name specc_model_open
        specc_model_info_get specc_certificate_explain specc_device specc_kernels
        specc_request_default specc_session_create specc_session_start specc_session_step
        specc_session_run specc_session_cancel specc_session_tokens specc_session_seed
        specc_session_stats specc_session_free specc_model_free
    """,
    "specc_extend.h": """
        specc_fail specc_ort_backend specc_gpu_info specc_tensorrt_backend specc_tensorrt_headers
        specc_tensorrt_version specc_draft_map_create specc_draft_map_read specc_draft_map_free
        specc_draft_draw specc_draft_shape specc_draft_pick specc_draft_put specc_draft_pays
        specc_ngram_drafter specc_table_drafter specc_model_drafter specc_feature_drafter
        specc_medusa_drafter specc_staged_drafter specc_hierarchy_drafter specc_model_create
    """,
    "specc_judge.h": """
        specc_certify specc_model_set_certificate specc_certificate_save specc_session_trace
        specc_session_decisions specc_session_score specc_trials specc_table_backend
        specc_table_hidden specc_table_heads specc_philox specc_exp specc_log specc_distribution
        specc_judge_rows
    """,
}
"""In the order of the header."""
CONTROLS = {"specc_fault_name", "specc_fault_set"}
"""Exported by libspecc_controls.so in addition."""
SIZES = {
    "specc_certificate": 1080,
    "specc_open_options": 48,
    "specc_model_info": 1184,
    "specc_options": 72,
    "specc_request": 128,
    "specc_event": 48,
    "specc_stats": 264,
    "specc_io": 56,
    "specc_round": 88,
    "specc_backend": 200,
    "specc_ort_options": 568,
    "specc_gpu": 240,
    "specc_tensorrt_options": 176,
    "specc_draft_map": 24,
    "specc_draft_context": 200,
    "specc_proposal": 400,
    "specc_drafter": 72,
    "specc_head_options": 32,
    "specc_hierarchy_options": 24,
    "specc_model_parts": 64,
    "specc_certify_options": 56,
    "specc_decision": 64,
}
"""Bytes of each struct on a platform with 8-byte pointers."""


def read_functions(header: str) -> list[str]:
    """Names of the functions that a header declares, in its order."""
    text = re.sub(r"/\*.*?\*/", "", header_text(find_file(f"include/{header}")), flags=re.S)
    return re.findall(r"\b(specc_\w+)\(", text)


def read_exports(loaded: Library) -> set[str]:
    """Symbols that a library exports."""
    nm = shutil.which("nm")
    if nm is None:
        pytest.skip("needs nm")
    command = [nm, "-D", "--defined-only", str(loaded.path)]
    lines = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
    return {line.split()[-1].split("@")[0] for line in lines}


@pytest.mark.parametrize("header", HEADERS)
def test_header_declares(header: str) -> None:
    """Each function is in the header for its reader; the one for programs that generate text stays small."""
    assert read_functions(header) == FUNCTIONS[header].split()
    assert len(read_functions("specc.h")) <= 25


def test_nothing_else_is_exported() -> None:
    """The declared functions and ONNX Runtime's entry point; the controls library adds the fault switches."""
    declared = {name for names in FUNCTIONS.values() for name in names.split()} | {"RegisterCustomOps"}
    assert read_exports(library()) == declared
    assert read_exports(controls()) == declared | CONTROLS


@pytest.mark.skipif(platform.architecture()[0] != "64bit", reason="sizes are those of 64 bits")
def test_struct_sizes() -> None:
    """Layouts change only on purpose; the library and the headers agree on them."""
    assert {name: library().c.specc_sizeof(name.encode()) for name in STRUCTS} == SIZES
    assert library().c.specc_sizeof(b"specc_nothing") == 0

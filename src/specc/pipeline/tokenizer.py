"""Stage 3: the tokenizer's files, and the calibration ids that every later measurement reads."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from specc.contracts.bundle.tables import encode_calibration, encode_id_bytes
from specc.pipeline.cache import CacheEntry, tool_versions
from specc.pipeline.checkpoint import CheckpointRecord
from specc.pipeline.clock import Clock
from specc.pipeline.identity import run_reading_stage
from specc.pipeline.planned import Planned
from specc.pipeline.source_code import code_hash

TEMPLATE = "chat_template.jinja"
CODE = ("specc.exporter.checkpoint.checkpoint", "specc.calib.tokens", "specc.pipeline.tokenizer")


def write_tokenizer(planned: Planned, clock: Clock) -> CacheEntry:
    """tokenizer.json, id_bytes.bin, chat_template.jinja and calibration.bin. Raises InputError for too little
    text.
    """
    from specc.calib.tokens import identify_text

    recipe, target = planned.plan.recipe, planned.target
    with clock.stage("tokenizer") as hit:
        path = recipe.folder / recipe.calibration_text if recipe.calibration_text else None
        inputs = {
            "calibration": identify_text(path),
            "code": code_hash(*CODE),
            "tools": tool_versions(),
        }
        entry = run_reading_stage("tokenizer", inputs, [target.identity], partial(write_files, target, path))
        hit(entry.cached)
    return entry


def write_files(target: CheckpointRecord, calibration: Path | None, folder: Path) -> dict[str, Any]:
    """Write the tokenizer's files and the calibration ids into `folder`.

    Raises InputError for a tokenizer whose tokens are past the embedding's last row.
    """
    from specc.calib.tokens import load_text, tokenize_text
    from specc.exporter.checkpoint.tokenizer import TokenizerJson, check_rows
    from specc.generate.template import check_ids, load_tokenizer

    checkpoint, spec = target.open(), target.spec
    json_file = checkpoint.save_tokenizer(folder)
    tokens = TokenizerJson(json_file.read_text(encoding="utf-8"))
    check_rows(tokens, target.source.checkpoint, spec.vocab, spec.eos)
    (folder / "id_bytes.bin").write_bytes(encode_id_bytes(checkpoint.id_bytes()[: spec.token_ids]))
    if checkpoint.chat_template:
        (folder / TEMPLATE).write_text(checkpoint.chat_template, encoding="utf-8")
    text, tokenizer = load_text(calibration), load_tokenizer(json_file)
    ids = tokenize_text(lambda part: tokenizer.encode(part, add_special_tokens=False).ids, text)
    check_ids(ids, spec.token_ids, f"the calibration text {text.origin}")
    (folder / "calibration.bin").write_bytes(encode_calibration(ids))
    return {
        "strip_leading_space": bool(checkpoint.strip_leading_space),
        "has_chat_template": bool(checkpoint.chat_template),
        "special_tokens": dict(checkpoint.special_tokens),
        "calibration": {"text": text.origin, "sha256": text.sha256, "ids": len(ids)},
    }

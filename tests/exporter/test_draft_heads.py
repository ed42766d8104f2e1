"""Draft heads as modules, files and graphs: a graph gives what its module gives, a wrong file is named."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from support import tiny

from specc.contracts.engine_plan import EnginePlan
from specc.contracts.scheme import Scheme
from specc.errors import InputError
from specc.exporter.checkpoint.checkpoint import Checkpoint, open_checkpoint
from specc.exporter.draft_heads.build import build_draft_head
from specc.exporter.draft_heads.export import export_draft_head
from specc.exporter.draft_heads.file import load_draft_head, save_draft_head
from specc.exporter.draft_heads.modules import MedusaHead, build_feature_head

IDS = torch.arange(0, 192, 3)


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    return open_checkpoint(str(tiny.tiny_folder(tmp_path_factory.mktemp("target"))))


@pytest.fixture(scope="module")
def files(target: Checkpoint, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder, model = tmp_path_factory.mktemp("heads"), target.load()
    torch.manual_seed(3)
    feature = build_feature_head(model, IDS)
    medusa = MedusaHead(model.get_output_embeddings().weight.detach()[IDS], 3)
    for block in medusa.blocks:
        torch.nn.init.normal_(block.weight, std=0.1)
    save_draft_head(
        folder / "feature.safetensors", "feature", feature.parts.state_dict(), IDS, {"layers": "1"}
    )
    save_draft_head(
        folder / "medusa.safetensors", "medusa", medusa.blocks.state_dict(prefix="blocks."), IDS, {"k": "3"}
    )
    return {kind: folder / f"{kind}.safetensors" for kind in ("feature", "medusa")}


def head_plan(target: Checkpoint, dialect: str, shares: str | None = None) -> EnginePlan:
    scheme = Scheme("w4", "w8") if dialect == "specc-cpu" else Scheme("fp32", "fp32")
    spec = replace(target.spec, vocab=len(IDS), layers=1)
    return EnginePlan("draft", spec, scheme, 1, 96, 112, (1, 2, 3, 5, 16), 16, dialect, shares, hidden=True)


@pytest.mark.parametrize("dialect", ["ort", "specc-cpu"])
@pytest.mark.parametrize("kind", ["feature", "medusa"])
def test_graph_gives_what_the_module_gives(
    kind: str, dialect: str, target: Checkpoint, files: dict[str, Path], tmp_path: Path
) -> None:
    plan = head_plan(target, dialect)
    made = export_draft_head(
        files[kind], plan if kind == "feature" else replace(plan, widths=(3,)), target, tmp_path
    )
    assert made.stage_errors["trace"] < 1e-5 and made.stage_errors["fuse"] < 1e-5
    assert made.stage_errors["quantize"] < (0.05 if dialect == "specc-cpu" else 1e-9)
    assert (tmp_path / "draft.onnx").is_file()


def test_file_gives_back_the_head(target: Checkpoint, files: dict[str, Path]) -> None:
    head = build_draft_head(load_draft_head(files["feature"]), target.load())
    torch.manual_seed(3)
    fresh = build_feature_head(target.load(), IDS)
    for name, weight in head.parts.state_dict().items():
        assert torch.equal(weight, fresh.parts.state_dict()[name].half().float()), name


def test_untrained_head_hands_the_feature_on(target: Checkpoint) -> None:
    model = target.load()
    head = build_feature_head(model, IDS)
    with torch.no_grad():
        head.enter.fc.weight[:, : model.config.hidden_size] = 0
        head.enter.feature = model.base_model(input_ids=torch.arange(6)[None]).last_hidden_state
        entered = head.enter(torch.arange(6)[None])
        alike = torch.cosine_similarity(model.base_model.norm(entered), head.enter.feature, dim=-1)
    assert alike.min() > 0.95


def test_wrong_files_are_named(target: Checkpoint, files: dict[str, Path], tmp_path: Path) -> None:
    (tmp_path / "no.safetensors").write_bytes(b"nothing")
    with pytest.raises(InputError, match="cannot read the head"):
        load_draft_head(tmp_path / "no.safetensors")
    other = tiny.tiny_model(hidden_size=32)
    with pytest.raises(InputError, match="does not fit the target"):
        build_draft_head(load_draft_head(files["feature"]), other)
    bare = {"layers": "1", "format": "another"}
    save_draft_head(tmp_path / "bare.safetensors", "feature", {"fc.weight": torch.zeros(2, 2)}, IDS, bare)
    with pytest.raises(InputError, match="no draft head"):
        load_draft_head(tmp_path / "bare.safetensors")


def test_draft_ids_come_back_as_they_were(files: dict[str, Path]) -> None:
    assert np.array_equal(load_draft_head(files["medusa"]).ids.numpy(), IDS.numpy())

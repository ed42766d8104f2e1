"""Training data: answers in a batch are those of the module, shards come back as written, nothing held out
stays in.
"""

import random
from pathlib import Path

import numpy as np
import pytest
import torch
from support import tiny

from specc.calib import answers, training_prompts
from specc.calib.answers import Dialogue
from specc.calib.batch import AnswerRequest, Batch, sample_tokens
from specc.calib.samples import Sample, collect_runs, drop_overlaps, hash_samples
from specc.calib.shards import list_shards, read_shard, write_shard


def sample(ids: list[int], n_prompt: int, n_user: int = 1, kind: str = "chat") -> Sample:
    hidden = np.arange((len(ids) - 1) * 4, dtype=np.float16).reshape(-1, 4)
    return Sample(kind, 0.0, np.asarray(ids, np.int32), n_prompt, n_user, hidden)


def greedy(model: object, ids: tuple[int, ...], count: int) -> list[int]:
    out = list(ids)
    with torch.no_grad():
        for _ in range(count):
            out.append(int(model(torch.tensor([out])).logits[0, -1].argmax()))  # type: ignore[operator]
    return out[len(ids) :]


def test_batched_answers_are_the_modules_own() -> None:
    model = tiny.tiny_model()
    requests = [AnswerRequest(tuple(range(3 + 7 * i, 9 + 9 * i)), 0.0, 6 + i) for i in range(5)]
    batch = Batch(model, 3, 96, eos=())
    results = batch.answer(requests, seed=1)
    for request, answer in zip(requests, results, strict=True):
        assert answer.ids == greedy(model, request.ids, request.limit)
        whole = torch.tensor([[*request.ids, *answer.ids[:-1]]])
        states = model.base_model(whole).last_hidden_state[0]
        assert torch.allclose(answer.hidden.float(), states, atol=2e-2)


def test_answers_end_at_the_end_token_and_at_the_capacity() -> None:
    model = tiny.tiny_model()
    first = greedy(model, (1, 2, 3), 1)
    assert Batch(model, 2, 96, eos=first).answer([AnswerRequest((1, 2, 3), 0.0, 9)], 1)[0].ids == first
    assert len(Batch(model, 2, 8, eos=()).answer([AnswerRequest((1, 2, 3), 0.0, 90)], 1)[0].ids) == 5


def test_sampled_answers_follow_their_seed() -> None:
    batch, request = Batch(tiny.tiny_model(), 2, 96, eos=()), AnswerRequest((1, 2, 3), 1.0, 20)
    once, again, other = (batch.answer([request, request], seed)[0].ids for seed in (1, 1, 2))
    assert once == again != other


def test_a_shard_is_a_function_of_seed_and_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answers, "LIMIT", 12)
    monkeypatch.setattr(answers, "PROMPT_LIMIT", 6)
    monkeypatch.setattr(training_prompts, "MODULES", ("csv", "textwrap", "contextlib"))
    training_prompts.collect_functions.cache_clear()
    training_prompts.collect_prose.cache_clear()

    def encode(text: str) -> list[int]:
        return [1 + byte % 200 for byte in text.encode()][:30]

    dialogue = Dialogue((1,), (2,), encode, lambda ids: "".join(chr(97 + id % 26) for id in ids))
    shards = [
        answers.make_shard(Batch(tiny.tiny_model(), 8, 96, eos=()), dialogue, 7, number, size=2)
        for number in (0, 0, 1)
    ]
    assert hash_samples(shards[0]) == hash_samples(shards[1]) != hash_samples(shards[2])
    assert {s.kind for s in shards[0]} == {"chat", "code", "json", "rewriting"}
    path = write_shard(tmp_path, 0, shards[0])
    back = read_shard(path, with_hidden=True)
    assert list_shards(tmp_path) == [path] and hash_samples(back) == hash_samples(shards[0])
    for old, new in zip(shards[0], back, strict=True):
        assert old.hidden is not None and new.hidden is not None and np.array_equal(old.hidden, new.hidden)
        assert (old.n_prompt, old.n_user) == (new.n_prompt, new.n_user)


def test_samples_that_share_a_run_with_held_out_text_are_dropped() -> None:
    held_out = list(range(100, 120))
    held_out_runs = collect_runs(np.asarray(held_out, np.int32))
    clean = sample([1, 2, *range(30, 60)], 10)
    in_answer = sample([1, 2, *range(30, 50), *range(103, 111)], 10)
    in_prompt = sample([1, *range(103, 111), *range(30, 50)], 9)
    seven = sample([1, 2, *range(30, 50), *range(103, 110)], 10)
    assert drop_overlaps([clean, in_answer, in_prompt, seven], held_out_runs) == [clean, seven]
    template = sample([*range(103, 111), *range(30, 50)], 12, n_user=8)
    assert drop_overlaps([template], held_out_runs) == [template]


def test_requests_cover_all_classes_and_never_read_the_measured_prompts() -> None:
    prompts = training_prompts.draw_prompts(
        random.Random(1), ["Why is the sky blue?"], ["A text of its own."], 8
    )
    assert [sum(p.kind == kind for p in prompts) for kind in ("chat", "code", "json")] == [8, 8, 8]
    assert any(p.text == "Why is the sky blue?" for p in prompts)
    assert prompts == training_prompts.draw_prompts(
        random.Random(1), ["Why is the sky blue?"], ["A text of its own."], 8
    )
    assert "prompts import" not in Path(training_prompts.__file__).read_text(encoding="utf-8")


@pytest.mark.parametrize("temperature", [0.5, 1.0])
def test_draws_follow_the_softmax(temperature: float) -> None:
    logits = torch.tensor([[0.0, 1.0, -1.0, 2.0]]).repeat(20000, 1)
    drawn = (
        np.bincount(
            sample_tokens(logits, [temperature] * 20000, torch.Generator().manual_seed(3)), minlength=4
        )
        / 20000
    )
    wanted = torch.softmax(logits[0] / temperature, -1).numpy()
    assert np.abs(drawn - wanted).sum() < 0.03  # five standard deviations of the sum
    assert np.abs(drawn - torch.softmax(logits[0] / (temperature * 2), -1).numpy()).sum() > 0.1

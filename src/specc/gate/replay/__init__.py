"""The replay judge: `record` goes through a record round by round, `slot` judges one decision."""

from specc.gate.replay.record import judge_record

__all__ = ["judge_record"]

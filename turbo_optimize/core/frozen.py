"""The base of every value that the runner speaks in."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Frozen(BaseModel):
    # An exact match has an SNR of inf: as a word in JSON it survives the journal (the default writes null).
    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="strings")

"""Which field of a row means what: the declaration that every reader works from."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Layout:
    """Field names of one trace format; None where the format has no such field.

    Lengths come from `prompt_tokens` and `output_tokens`, or from the lists of token ids where named.
    """

    name: str
    container: str
    """jsonl, csv or parquet: how the rows are stored, unless the content says otherwise."""
    arrival: str
    time_unit: str
    """Unit of `arrival` and `think`: s, ms, us, ns, or `datetime` for ISO stamps (`think` is then in ms)."""
    prompt_tokens: str | None = None
    output_tokens: str | None = None
    block_ids: str | None = None
    """A list of ids, each for `id_tokens` tokens of the prompt, the last block possibly partial."""
    id_tokens: int = 0
    id_tokens_field: str | None = None
    """A field that states the tokens a block id stands for; the first row's value holds for the file."""
    covered_tokens: str | None = None
    """How many tokens of prompt and answer the block ids cover; the prompt's where the field is absent."""
    prompt_token_ids: str | None = None
    output_token_ids: str | None = None
    session: str | None = None
    row_id: str | None = None
    parent: str | None = None
    """The `row_id` of the turn before this one; absent, null or -1 for none."""
    think: str | None = None
    """Time between the predecessor's end and this arrival; stands in for a missing `arrival`."""
    kind: str | None = None
    priority: str | None = None
    zero_output_failed: bool = False
    """Rows with 0 output tokens are failed requests, to be left out, rather than mistakes."""

    @property
    def list_fields(self) -> tuple[str | None, ...]:
        """Fields that hold lists of ids."""
        return self.block_ids, self.prompt_token_ids, self.output_token_ids

    @property
    def name_fields(self) -> tuple[str | None, ...]:
        """Fields that hold names, even where these look like numbers."""
        return self.session, self.row_id, self.parent, self.kind

    @property
    def fields(self) -> frozenset[str]:
        """Every field that is read."""
        others = (
            self.arrival,
            self.prompt_tokens,
            self.output_tokens,
            self.id_tokens_field,
            self.covered_tokens,
            self.think,
            self.priority,
        )
        return frozenset(f for f in (*others, *self.list_fields, *self.name_fields) if f is not None)

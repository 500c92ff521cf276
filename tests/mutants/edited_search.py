"""Faults of beam search and of sampling."""

from tests.models.test_beam import decoder, translator
from tests.mutants.edits import Edit

BEAM, SEARCH = "tests.models.test_beam", "regard.models.beam:_Search"

BEAMS = (
    Edit(
        "forgets what the beginning cost",
        f"{SEARCH}._grow",
        "past[:, None] + steps",
        "0 * past[:, None] + steps",
        BEAM,
        "test_enough_beams_find_the_best_of_all_sequences",
        (decoder, 0.6),
    ),
    Edit(
        "the penalty of the longest",
        f"{SEARCH}._finish",
        "length_penalty(len(beam.tokens), self.alpha)",
        "length_penalty(self.max_new_tokens, self.alpha)",
        BEAM,
        "test_enough_beams_find_the_best_of_all_sequences",
        (decoder, 0.6),
    ),
    Edit(
        "one row's places for all",
        f"{SEARCH}._grow",
        "len(self.finished[row])",
        "len(self.finished[0])",
        BEAM,
        "test_rows_are_independent",
        (translator,),
    ),
)

SAMPLES, PICK = "tests.models.test_sampling", "regard.models.sampling:Sampling.pick"
PROBABILITIES = [0.1, 0.4, 0.05, 0.3, 0.15]

SAMPLED = (
    Edit(
        "temperature as a factor",
        PICK,
        ".double() / self.temperature",
        ".double() * self.temperature",
        SAMPLES,
        "test_temperature_is_an_exponent",
    ),
    Edit(
        "one of the top too many",
        PICK,
        "mass[:, self.top_k :] = 0",
        "mass[:, self.top_k + 1 :] = 0",
        SAMPLES,
        "test_distribution",
        ({"top_k": 2}, [0, 4 / 7, 0, 3 / 7, 0]),
    ),
    Edit(
        "one uniform number for all rows",
        "regard.models.sampling:_invert",
        "uniforms.double()[:, None]",
        "uniforms.double()[:1, None].expand(len(mass), 1)",
        SAMPLES,
        "test_rows_do_not_mix",
    ),
    Edit(
        "a token of probability 0 at the lower edge",
        "regard.models.sampling:_invert",
        "right=True",
        "right=False",
        SAMPLES,
        "test_tokens_of_probability_zero_never_come",
    ),
)

SEARCH_AND_SAMPLING = BEAMS + SAMPLED

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
        "the states of other beams",
        f"{SEARCH}._grow",
        "parents.append(at)",
        "parents.append(0)",
        BEAM,
        "test_enough_beams_find_the_best_of_all_sequences",
        (decoder, 0.6),
    ),
    Edit(
        "no penalty for length",
        f"{SEARCH}._finish",
        "/ length_penalty(len(beam.tokens), self.alpha)",
        "/ 1",
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
        "goes on behind the end",
        f"{SEARCH}._finish",
        "stopped = beam.tokens[-1] == self.end_token",
        "stopped = False",
        BEAM,
        "test_enough_beams_find_the_best_of_all_sequences",
        (decoder, 0.6),
    ),
    Edit(
        "finished ones take no place",
        f"{SEARCH}._grow",
        "self.beams - len(self.finished[row])",
        "self.beams",
        BEAM,
        "test_a_finished_sequence_keeps_its_score_and_its_place",
    ),
    Edit(
        "worst first",
        f"{SEARCH}.run",
        "-hypothesis.score",
        "hypothesis.score",
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
        "the sum includes its own token",
        PICK,
        "mass.cumsum(-1) - mass < self.top_p",
        "mass.cumsum(-1) < self.top_p",
        SAMPLES,
        "test_distribution",
        ({"top_p": 0.69}, [0, 4 / 7, 0, 3 / 7, 0]),
    ),
    Edit(
        "top_p of what top_k has cut",
        PICK,
        "mass = mass / mass.sum(-1, keepdim=True)",
        "pass",
        SAMPLES,
        "test_distribution",
        ({"top_k": 2, "top_p": 0.5}, [0, 1, 0, 0, 0]),
    ),
    Edit(
        "places for token ids",
        PICK,
        "ids.gather(-1, _invert(mass, uniforms)[:, None])[:, 0]",
        "_invert(mass, uniforms)",
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
    Edit(
        "uniform numbers of half the mass",
        "regard.models.sampling:_invert",
        " * reached[:, -1:]",
        " * reached[:, -1:] / 2",
        SAMPLES,
        "test_distribution",
        ({"top_k": 2}, [0, 4 / 7, 0, 3 / 7, 0]),
    ),
)

SEARCH_AND_SAMPLING = BEAMS + SAMPLED

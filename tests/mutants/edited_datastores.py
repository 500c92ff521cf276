"""One-line faults of datastores, of kNN-LM, and of the gate that mixes neighbours in."""

from tests.mutants.edits import Edit

CONTRACT, NEIGHBOURS = "tests.retrieval.test_contract", "tests.models.test_neighbours"
DATASTORE, SEARCH, KNN_LM = (
    "regard_lab.retrieval.datastore",
    "regard_lab.retrieval.search",
    "regard_lab.retrieval.knn_lm",
)
OWN, CUT = "regard_lab.retrieval.own", "test_a_text_that_is_cut_elsewhere_does_not_find_itself"
SPALM, GATE = "regard_lab.retrieval.spalm", "regard.models.neighbours:NeighbourGate"
LOOPS = "test_the_mixture_is_that_of_the_loops"

STORED = (
    Edit(
        "the token of the key instead of the next",
        "regard_lab.retrieval.build:build",
        "window[1 + skipped :]",
        "window[skipped : len(window) - 1]",
        CONTRACT,
        "test_what_is_found_is_the_token_that_came_next",
    ),
    Edit(
        "distances that are not squared",
        f"{SEARCH}:_measured",
        "gap.square_()",
        "gap.abs_()",
        CONTRACT,
        "test_distances_are_squared",
    ),
    Edit(
        "a deleted document is still found",
        f"{DATASTORE}:Datastore.delete",
        "document.name not in names for document in manifest.documents]",
        "True for document in manifest.documents]",
        CONTRACT,
        "test_a_deleted_document_is_not_found",
    ),
    Edit(
        "a merge loses entries",
        "regard_lab.retrieval.writer:Writer.copy",
        "keys[count:], values[count:], place",
        "keys[:-count], values[:-count], place",
        CONTRACT,
        "test_a_merge_has_every_entry",
    ),
    Edit(
        "a damaged file is not noticed",
        f"{DATASTORE}:Datastore.verify",
        "Entry.at(path) if contents and",
        "Entry.at(path) if not contents and",
        CONTRACT,
        "test_a_file_of_the_same_size_that_is_another_is_noticed",
    ),
)

LOOKED_UP = (
    Edit(
        "a drawn document has as many targets as any other",
        "regard_lab.retrieval.evaluation:bootstrap",
        "size[drawn].sum(1) for x",
        "size.sum() for x",
        "tests.retrieval.test_knn_lm",
        "test_the_bootstrap_draws_documents_with_all_of_their_targets",
    ),
    Edit(
        "the temperature is ignored",
        f"{KNN_LM}:neighbour_log_probabilities",
        "scaled(neighbours.distances, temperature)",
        "scaled(neighbours.distances, 1.0)",
        CONTRACT,
        "test_the_temperature_divides",
    ),
    Edit(
        "weight 0 changes bits",
        f"{KNN_LM}:mixed",
        "return logits",
        "return logits.log_softmax(-1)",
        CONTRACT,
        "test_weight_0_changes_no_bit",
    ),
    Edit(
        "the entry beside the own one is left out",
        f"{OWN}:Own.__call__",
        "run.entry + first - run.first",
        "run.entry + place - run.first",
        CONTRACT,
        "test_no_target_finds_the_entry_that_was_made_of_it",
    ),
    Edit(
        "a text that is cut elsewhere finds itself",
        f"{OWN}:Own.of",
        "runs += self._texts.cuts(targets, but=key)",
        "pass",
        CONTRACT,
        CUT,
    ),
    Edit(
        "passages of other texts are left out",
        f"{OWN}:_Texts._agreeing",
        "end >= stop - _EDGE and ",
        "",
        CONTRACT,
        "test_a_passage_of_another_text_is_found",
    ),
    Edit(
        "own entries are found in training",
        f"{SPALM}:_Windows._look",
        "None if self._of.leaving_out is None else",
        "None if self._of.leaving_out is not None else",
        CONTRACT,
        "test_training_text_does_not_find_itself",
    ),
    Edit(
        "of many equal keys any are found",
        f"{SEARCH}:_nearest",
        "if not len(unsure)",
        "if True",
        CONTRACT,
        "test_of_many_equal_keys_the_earlier_are_found",
    ),
    Edit(
        "keys are compared from the origin",
        f"{SEARCH}:_middle",
        ".mean(0)",
        ".mean(0) * 0 + 3e4",
        CONTRACT,
        "test_the_middle_is_among_the_keys",
    ),
    Edit(
        "files of somebody else are removed",
        "regard_lab.retrieval.manifest:of_block",
        "bool(_OF_BLOCK.fullmatch(path.name))",
        "path.suffix in ('.keys', '.values')",
        CONTRACT,
        "test_files_of_somebody_else_stay",
    ),
)

MIXED_IN = (
    Edit(
        "the gate is turned",
        f"{GATE}.forward",
        "torch.lerp(mean.to(hidden.dtype), hidden, own.to(hidden.dtype))",
        "torch.lerp(hidden, mean.to(hidden.dtype), own.to(hidden.dtype))",
        NEIGHBOURS,
        "test_the_mixture_is_that_of_the_loops",
        (None,),
    ),
    Edit(
        "neighbours that are not there have a part",
        f"{GATE}.forward",
        "masked_fill(~there & some, float",
        "masked_fill(~there & ~some, float",
        NEIGHBOURS,
        LOOPS,
        (None,),
    ),
    Edit(
        "distances count unasked",
        f"{GATE}.forward",
        "if self.temperature is not None:\n        far = neighbours.distances.masked_fill(~there, 0)\n"
        "        logits = logits - far.to(wide) / self.temperature",
        "far = neighbours.distances.masked_fill(~there, 0)\n    logits = logits - far.to(wide)",
        NEIGHBOURS,
        "test_the_mixture_is_that_of_the_loops",
        (None,),
    ),
    Edit(
        "embeddings do not learn from what is mixed in",
        f"{GATE}.forward",
        "clamp_min(0), table)",
        "clamp_min(0), table.detach())",
        NEIGHBOURS,
        "test_embeddings_learn_from_what_is_mixed_in",
    ),
)

DATASTORES = STORED + LOOKED_UP + MIXED_IN

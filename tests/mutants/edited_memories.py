"""One-line faults of memories, of the layer that reads them and of what carries them through a training."""

from tests.mutants.edits import Edit

COMPRESSIVE, OF_COMPRESSIVE = "regard.memory.compressive:Compressive", "tests.memory.test_compressive"
MEMORIZING, OF_MEMORIZING = "regard.memory.memorizing", "tests.memory.test_memorizing"
CARRIED, OF_CARRIED = "regard_lab.training.carried", "tests.training.test_carried"
LISTS, OF_LISTS = "regard.memory._lists", "tests.memory.test_lists"
OF_MISFITS = "tests.memory.test_misfits"
DEFINED = "test_the_joint_definition"

REWOUND = (
    Edit(
        "the other end of a segment is given back",
        "regard.memory._base:MemoryState.rewind",
        "x[:, :left] for",
        "x[:, -left:] for",
        "tests.memory.test_rewind",
        "test_the_running_segment_is_given_back_and_no_more",
        (True,),
    ),
)

COMPRESSED = (
    Edit(
        "the oldest slots stay",
        f"{COMPRESSIVE}.write",
        "slots[:, first:]",
        "slots[:, : self.compressed]",
        OF_COMPRESSIVE,
        "test_the_bookkeeping_of_the_specification",
    ),
    Edit(
        "a block leaves too early",
        f"{COMPRESSIVE}.write",
        "leaving = max(hidden.shape[1] - self.length, 0)",
        "leaving = max(hidden.shape[1] - self.length + 1, 0)",
        OF_COMPRESSIVE,
        "test_the_losses_by_their_definitions",
        ([],),
    ),
    Edit(
        "what is masked takes a place of what is real",
        f"{COMPRESSIVE}.squeezed",
        "place >= share",
        "place > share",
        OF_COMPRESSIVE,
        "test_what_is_masked_has_no_part_in_a_slot",
        ("most_used",),
    ),
    Edit(
        "usage of the last segment alone",
        f"{COMPRESSIVE}._used",
        'state["usage"] + received',
        'state["usage"] * 0 + received',
        OF_COMPRESSIVE,
        "test_most_used_are_those_that_later_segments_attended_to",
    ),
    Edit(
        "dilated taps reach nothing before a call",
        f"{COMPRESSIVE}.squeezed",
        "torch.cat([tail.to(old.dtype), old], 1)",
        "torch.cat([torch.zeros_like(tail), old], 1)",
        OF_COMPRESSIVE,
        "test_what_a_slot_is",
        ("dilated_convolution",),
    ),
    Edit(
        "the loss trains the queries",
        f"{COMPRESSIVE}.write",
        "self._loss(q.detach(), ",
        "self._loss(q, ",
        OF_COMPRESSIVE,
        "test_the_loss_trains_the_function_alone_and_the_task_does_not",
        ("attention", "convolution"),
    ),
    Edit(
        "padding asks what was compressed",
        f"{COMPRESSIVE}._loss",
        "difference = difference * key_mask[:, None, :, None]",
        "pass",
        OF_COMPRESSIVE,
        "test_the_losses_by_their_definitions",
        (True,),
    ),
)

SEARCHED = (
    Edit(
        "queries as long as they are",
        f"{MEMORIZING}:Memorizing.read",
        "unit(q.to(wide), _EPS)",
        "q.to(wide)",
        OF_MEMORIZING,
        DEFINED,
        (100, 100, False),
    ),
    Edit(
        "keys stay in the lists of centres that are gone",
        f"{LISTS}:drawn_anew",
        "of[row] = nearest(keys[row : row + 1], centres[row : row + 1])[0]",
        "of[row] = of[row]",
        OF_LISTS,
        "test_recall_against_an_exact_search_grows_with_the_lists_that_are_read",
    ),
    Edit(
        "padding counts towards centres",
        f"{MEMORIZING}:Memorizing._listed",
        "key_mask.sum(1, keepdim=True)",
        "length",
        OF_LISTS,
        "test_padding_is_not_written",
    ),
    Edit(
        "lists have what is not real",
        f"{LISTS}:_index",
        "torch.arange(len(x)) if real is None else real.cpu().nonzero()[:, 0]",
        "torch.arange(len(x))",
        OF_LISTS,
        "test_queries_one_by_one_find_what_all_find",
    ),
    Edit(
        "a query of lists that finds nothing reads a memory of zeros",
        f"{MEMORIZING}:Memorizing.read",
        "gate = gate * keep.any(-1, keepdim=True)",
        "gate = gate * 1.0",
        OF_LISTS,
        "test_a_query_that_finds_nothing_keeps_the_mechanism_s",
    ),
)

THROUGH_TRAINING = (
    Edit(
        "a row goes on from another part of the order",
        f"{CARRIED}:Lanes.fresh",
        "first or bool(begins)",
        "bool(begins)",
        OF_CARRIED,
        "test_rows_read_on_and_begin_anew_with_a_document",
        ([7], 2),
    ),
    Edit(
        "a document is not over",
        f"{CARRIED}:whole_documents",
        "if at + 1 < end",
        "if at < end",
        OF_CARRIED,
        "test_whole_documents_are_read_once_in_order",
        ([3, 1, 4, 1, 5], 2),
    ),
)

MISFITS = (
    Edit(
        "a memory of other slots is read",
        "regard.memory._base:Memory.check_state",
        "if state.spec_tag != self.spec_tag:",
        "if state.spec_tag[:9] != self.spec_tag[:9]:",
        OF_MISFITS,
        "test_a_decoder_goes_on_from_its_own_states_alone",
        (False,),
    ),
)

MEMORIES = COMPRESSED + REWOUND + SEARCHED + MISFITS + THROUGH_TRAINING

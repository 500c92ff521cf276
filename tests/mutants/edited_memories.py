"""One-line faults of memories, of the layer that reads them and of what carries them through a training."""

from tests.mutants.edits import Edit

COMPRESSIVE, OF_COMPRESSIVE = "regard.memory.compressive:Compressive", "tests.memory.test_compressive"
MEMORIZING, OF_MEMORIZING = "regard.memory.memorizing", "tests.memory.test_memorizing"
CARRIED, OF_CARRIED = "regard.training.carried", "tests.training.test_carried"
DEFINED = "test_the_joint_definition"

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
        "test_remainders_stay_and_no_block_border_moves",
        ([5] * 7, 3),
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
        "masked positions count in a mean",
        f"{COMPRESSIVE}.squeezed",
        "by_block.sum(2).clamp(min=1)[..., None]",
        "self.rate",
        OF_COMPRESSIVE,
        "test_what_is_masked_has_no_part_in_a_slot",
        ("mean",),
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
        "losses of rows are added",
        f"{COMPRESSIVE}._loss",
        "norms.mean() if",
        "norms.sum() if",
        OF_COMPRESSIVE,
        "test_the_losses_by_their_definitions",
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
        "a gate into nothing",
        f"{MEMORIZING}:Memorizing.read",
        "gate = gate * real.any(1)[:, None, None, None]",
        "gate = gate * 1.0",
        OF_MEMORIZING,
        DEFINED,
        (100, 3, True),
    ),
    Edit(
        "padding is found",
        f"{MEMORIZING}:Memorizing.search",
        'scores.masked_fill_(hidden[own], float("-inf"))',
        "scores.add_(0)",
        OF_MEMORIZING,
        DEFINED,
        (100, 3, True),
    ),
    Edit(
        "the oldest pairs stay",
        f"{MEMORIZING}:_newest",
        "x.narrow(axis, x.shape[axis] - n, n)",
        "x.narrow(axis, 0, n)",
        OF_MEMORIZING,
        DEFINED,
        (7, 3, False),
    ),
    Edit(
        "a group asks another head's keys",
        f"{MEMORIZING}:_picked",
        "[None, :, None, None] // group",
        "[None, :, None, None] % x.shape[1]",
        OF_MEMORIZING,
        DEFINED,
        (100, 100, False),
    ),
    Edit(
        "rotated queries ask keys that are not",
        "regard.layer.attention_layer:AttentionLayer.values",
        "self._remembered(projected, values",
        "self._remembered((q, *projected[1:]), values",
        OF_MEMORIZING,
        DEFINED,
        (100, 100, False),
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
    Edit(
        "the end of an epoch is left out",
        f"{CARRIED}:Lanes.__init__",
        "-(-self.count // batch_size)",
        "self.count // batch_size",
        OF_CARRIED,
        "test_rows_read_on_and_begin_anew_with_a_document",
        ([3, 1, 4, 1, 5], 3),
    ),
)

MEMORIES = COMPRESSED + SEARCHED + THROUGH_TRAINING

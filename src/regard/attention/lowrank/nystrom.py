"""Nystrom attention: a softmax of all pairs rebuilt from those with a few landmarks."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any, ClassVar, Literal, final

import torch
import torch.nn.functional as F
from annotated_types import Ge, Gt
from jaxtyping import Bool, Float
from torch import Tensor, nn

from regard.core.attention import Attended, Attention, Call, accumulation_dtype, generator
from regard.core.errors import ConfigError
from regard.core.info import Info, Supports
from regard.core.options import weight
from regard.engines.dense import dot_product, expand_heads, softmax


@final
class Nystrom(Attention):
    """The softmax rebuilt from landmarks: o = F A^+ (B v).

    F = softmax(q k~^T), A = softmax(q~ k~^T) and B = softmax(q~ k^T), with q and k scaled by dim^(-1/4). The landmarks
    q~ and k~ are means over `num_landmarks` runs of queries and of keys, as even as they come; where tokens are fewer
    each of them is a landmark, and with an exact A^+ the answer is that of softmax. A^+ is the pseudo-inverse, exact or
    by Z <- Z (13 I - A Z (15 I - A Z (7 I - A Z))) / 4 from Z = A^T / (|A|_1 |A|_inf). These norms are of one matrix
    each (`norm`): the first published code took their maximum over the batch. With a `convolution` the values are
    added, smoothed along the sequence: sum_t w_t v_(i + t - width // 2), with the `filters` w (heads, width).

    Cost: O(length num_landmarks (dim + value) + iterations num_landmarks^3) time, O(length num_landmarks) memory. Lost:
    what differs inside a run; weights may be negative, and need not add up to 1. With an exact A^+ they do while A is
    regular; confident queries make it singular, where two landmarks attend to the same key alone, and then whole rows
    may add up to 0. No causal form: landmarks see every position.

    A run is one of real tokens. Where there are as many queries as keys, `key_mask` is taken to hide queries too, from
    their landmarks: queries that stand for padding would otherwise change the others.

    Raises:
        ConfigError: an even `convolution`; `iterations`, `tolerance` or norm="heads" of pinv="exact"; no
            `num_landmarks` with pinv="iterative".

    Example:
        >>> from regard import Heads, attend
        >>> q, k, v = torch.randn(3, 1, 1, 12, 8, dtype=torch.float64)
        >>> exact = Nystrom(Heads(count=1, key_dim=8), num_landmarks=12, pinv="exact")
        >>> torch.allclose(exact(q, k, v).values, attend(q, k, v))
        True
        >>> Nystrom.reasons["causal"]
        'its landmarks are means over all positions, later ones included'

    Source: Xiong et al. 2021, section 3.
    """

    default_info = Info(
        title="Nyström attention",
        source="Xiong et al. 2021, section 3",
        supports=Supports(bidirectional=True, cross=True, key_mask=True),
        time=1,
        rows_sum_to_one=False,
        nonnegative=False,
        mixes_queries=True,
    )
    samples: ClassVar[tuple[Mapping[str, object], ...]] = (
        {"num_landmarks": 4},
        {"num_landmarks": 5, "pinv": "exact"},
        {"num_landmarks": 5, "iterations": 4, "tolerance": 0.05, "convolution": 3, "norm": "heads"},
        {"num_landmarks": None, "pinv": "exact", "convolution": 3},
    )
    reasons: ClassVar[Mapping[str, str]] = {
        "bias": "its weights are a product of three matrices, so no term can be added to a logit",
        "causal": "its landmarks are means over all positions, later ones included",
        "cross": "its convolution runs over the queries' own sequence",
        "dropout": "its weights are never made",
        "state": "its landmarks change with every token",
    }

    num_landmarks: Annotated[int, Ge(1)] | None = 64
    """runs of queries, and as many of keys; the paper takes 32 to 256. None: every token is a landmark, and since
    A A^+ A = A of the exact A^+ the softmax itself is computed, O(length^2): released networks of short texts have it,
    with a convolution"""
    pinv: Literal["iterative", "exact"] = "iterative"
    """how A^+ is made: `iterative` as above, `exact` by singular values, of which those below the rounding of the type
    count as 0. Where landmarks are much alike A is close to singular: then `exact` multiplies by large numbers, rounds
    otherwise in every type, and may lie further from softmax than six iterations, which damp them"""
    iterations: Annotated[int, Ge(1)] | None = None
    """of `iterative`, at most; None: 6, as published"""
    tolerance: Annotated[float, Gt(0)] | None = None
    """the largest |A Z A - A| of a number at which a matrix needs no further iteration; None: all are made"""
    norm: Literal["matrix", "heads"] = "matrix"
    """|A|_1 where the iteration begins: of each matrix, or the largest of its heads, as in networks that were trained
    with the first published code and are run one text at a time; never of the batch"""
    convolution: Annotated[int, Ge(1)] | None = None
    """width of the filter over the values, odd; published code has 33, 35 and 65; None: no such term"""
    filters: nn.Parameter | None = weight()

    @classmethod
    def facts(cls, options: Mapping[str, Any]) -> Info:
        """An exact inverse gives softmax where tokens are few; a filter runs over one sequence."""
        info, exact = cls.default_info, options["pinv"] == "exact"
        if options["num_landmarks"] is None:
            sums = options["convolution"] is None
            info = replace(info, time=2, rows_sum_to_one=sums, nonnegative=sums, mixes_queries=False)
        if options["convolution"] is not None:
            return replace(info, supports=replace(info.supports, cross=False))
        if not exact or options["num_landmarks"] is None:
            return info
        return replace(info, approximates="softmax", knob="num_landmarks")

    def check_options(self) -> None:
        if self.convolution is not None and self.convolution % 2 == 0:
            raise ConfigError(
                f"nystrom: a convolution reaches as far to both sides, so it is odd; got convolution={self.convolution}"
            )
        for option in ("iterations", "tolerance"):
            if self.pinv == "exact" and self.options[option] is not None:
                given = f"{option}={self.options[option]}"
                raise ConfigError(f"nystrom: {option} belongs to pinv='iterative', got {given} with pinv='exact'")
        if self.pinv == "exact" and self.norm == "heads":
            raise ConfigError("nystrom: norm belongs to pinv='iterative', got norm='heads' with pinv='exact'")
        if self.pinv == "iterative" and self.num_landmarks is None:
            raise ConfigError("nystrom: with num_landmarks=None nothing is inverted step by step; set pinv='exact'")

    def setup(self) -> None:
        self.filters, heads = None, self.heads
        if self.pinv == "iterative" and self.iterations is None:
            self.iterations = 6
        if self.convolution is not None:
            normal = torch.randn(heads.count, self.convolution, generator=generator(heads.seed, "nystrom"))
            self.filters = nn.Parameter(normal * self.convolution**-0.5)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, call: Call) -> Attended:
        """Two softmaxes over few and over all keys, and between them the inverse, so that F A^+ B is never made."""
        self._require_own(call)
        dtype = accumulation_dtype(q.dtype)
        with torch.autocast(q.device.type, enabled=False):
            q, k, v = (x.to(dtype) for x in (q, k, v))
            if self.num_landmarks is None:
                values = dot_product(q, k, v, Call(key_mask=call.key_mask), scale=q.shape[-1] ** -0.5)
            else:
                values = self._rebuilt(q, k, v, call, self.num_landmarks)
            if self.filters is not None:
                taps, width = self.filters.to(dtype)[:, None, :, None], self.filters.shape[1]
                v = expand_heads(v, self.heads.count)
                values = values + F.conv2d(v, taps, padding=(width // 2, 0), groups=self.heads.count)
        return Attended(values)

    def _rebuilt(self, q: Tensor, k: Tensor, v: Tensor, call: Call, count: int) -> Tensor:
        """F A^+ (B v) with `count` landmarks."""
        scale, real = q.shape[-1] ** -0.5, call.key_mask
        landmarks, asked = self._landmarks(q, real if call.paired else None, count)
        keys, seen = self._landmarks(k, real, count)
        keys = expand_heads(keys, self.heads.count)
        logits = scale * landmarks @ keys.mT
        # Landmarks that no token belongs to are rows and columns of 0, which are 0 in the inverse too.
        a = softmax(logits if seen is None else logits.masked_fill(~seen[:, None, None], float("-inf")))
        a = a if asked is None else a * asked[:, None, :, None]
        gathered = dot_product(landmarks, k, v, Call(key_mask=real), scale=scale)
        return dot_product(q, keys, self._inverse(a) @ gathered, Call(key_mask=seen), scale=scale)

    def _landmarks(
        self, x: Float[Tensor, "batch heads length dim"], real: Bool[Tensor, "batch length"] | None, count: int
    ) -> tuple[Float[Tensor, "batch heads landmarks dim"], Bool[Tensor, "batch landmarks"] | None]:
        """Means over even runs of the real tokens, and which landmarks there are; None: all."""
        length = x.shape[2]
        # A graph serves every length. An exact inverse may multiply by so much that two ways to a mean would differ.
        plain = self.pinv == "iterative" and not torch.compiler.is_compiling()
        whole = real is None and plain and length >= count
        if whole and length % count == 0:
            return x.unflatten(2, (count, -1)).mean(3), None
        if real is None:
            real = torch.ones(x.shape[0], length, dtype=torch.bool, device=x.device)
        rank, tokens = real.cumsum(1) - 1, real.sum(1, keepdim=True)
        run = torch.where(real, rank * tokens.clamp(max=count) // tokens.clamp(min=1), -1)
        member = run[:, None] == torch.arange(count, device=x.device)[:, None]
        size = member.sum(-1, keepdim=True)
        shares = member.to(x.dtype) / size.clamp(min=1)
        means = shares[:, None] @ (x if whole else x.masked_fill(~real[:, None, :, None], 0))
        return means, None if whole else size[..., 0] > 0

    def _require_own(self, call: Call) -> None:
        if self.convolution is not None and not call.paired:
            self.refuse("query_start", "cross")

    def _inverse(self, a: Float[Tensor, "batch heads queries keys"]) -> Float[Tensor, "batch heads keys queries"]:
        """A^+ of every matrix by itself."""
        if self.iterations is None:
            lost = ~a.isfinite().all(-1, keepdim=True).all(-2, keepdim=True)  # which no singular values are found of
            return torch.linalg.pinv(a.masked_fill(lost, 0)).masked_fill(lost, float("nan"))
        # |A|_inf is 1, the sum of a row; without any real token every number is 0.
        largest = a.sum(-2).amax(-1).clamp(min=torch.finfo(a.dtype).tiny)
        largest = largest.amax(1, keepdim=True) if self.norm == "heads" else largest
        z, one = a.mT / largest[..., None, None], torch.eye(a.shape[-1], dtype=a.dtype, device=a.device)
        for _ in range(self.iterations):
            az = (a @ z).flatten(0, 1)
            further = one * 1.75 - az * 0.25
            for summand in (3.75, 3.25):
                further = torch.baddbmm(one * summand, az, further, alpha=-1)
            further, az = z @ further.view_as(a), az.view_as(a)
            if self.tolerance is None:
                z = further
                continue
            done = (az @ a - a).abs().amax((-2, -1), keepdim=True) <= self.tolerance
            if not torch.compiler.is_compiling() and bool(done.all()):
                break
            z = torch.where(done, z, further)
        return z

    def reference(self, q: Tensor, k: Tensor, v: Tensor, call: Call) -> Tensor:
        """Element by element of the batch: the three matrices written out, then their product."""
        self._require_own(call)
        out, heads, scale = [], self.heads, q.shape[-1] ** 0.25
        for row in range(q.shape[0]):
            real = torch.arange(k.shape[2], device=q.device)
            real = real if call.key_mask is None else real[call.key_mask[row]]
            x, y = q[row] / scale, k[row][:, real] / scale
            y, values = (each.repeat_interleave(heads.group, 0) for each in (y, v[row][:, real]))
            if len(real) == 0:
                out.append(0 * x.sum() + q.new_zeros(heads.count, q.shape[2], v.shape[3]))
                continue
            if self.num_landmarks is None:
                f = torch.softmax(torch.einsum("hid,hjd->hij", x, y), -1)
                out.append(torch.einsum("hij,hje->hie", f, values) + self._smoothed(v[row]))
                continue
            count = self.num_landmarks
            of_queries, of_keys = self._means(x[:, real] if call.paired else x, count), self._means(y, count)
            f, a, b = (
                torch.softmax(torch.einsum("hid,hjd->hij", left, right), -1)
                for left, right in ((x, of_keys), (of_queries, of_keys), (of_queries, y))
            )
            columns = torch.linalg.matrix_norm(a, 1)
            columns = columns.max().expand(len(a)) if self.norm == "heads" else columns
            inverses = torch.stack([self._explicit_inverse(*each) for each in zip(a, columns, strict=True)])
            out.append(torch.einsum("hir,hrs,hsj,hje->hie", f, inverses, b, values) + self._smoothed(v[row]))
        return torch.stack(out)

    def _means(self, x: Tensor, count: int) -> Tensor:
        """The mean of each run: token t of n belongs to run floor(t runs / n)."""
        length = x.shape[1]
        runs = min(count, length)
        of = [t * runs // length for t in range(length)]
        return torch.stack([x[:, [t for t in range(length) if of[t] == r]].mean(1) for r in range(runs)], 1)

    def _explicit_inverse(self, a: Tensor, columns: Tensor) -> Tensor:
        """Of one matrix, from its norm |A|_1 or that of all heads."""
        if self.pinv == "exact":
            return torch.linalg.pinv(a) if bool(a.isfinite().all()) else a.T * float("nan")
        z = a.T / (columns * torch.linalg.matrix_norm(a, float("inf")))
        one = torch.eye(len(a), dtype=a.dtype, device=a.device)
        for _ in range(self.iterations or 0):
            if self.tolerance is not None and (a @ z @ a - a).abs().max() <= self.tolerance:
                break
            z = z @ (13 * one - a @ z @ (15 * one - a @ z @ (7 * one - a @ z))) / 4
        return z

    def _smoothed(self, v: Tensor) -> Tensor:
        """sum_t w_t v_(i + t - width // 2), of one element of the batch; values under the mask are 0."""
        v, width = v.repeat_interleave(self.heads.group, 0), self.convolution
        if self.filters is None or width is None:
            return v.new_zeros(())
        padded = F.pad(v, (0, 0, width // 2, width // 2))
        return sum((self.filters[:, t, None, None] * padded[:, t : t + v.shape[1]] for t in range(width)), 0 * v)

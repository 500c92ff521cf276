"""The logits of position schemes as their papers write them, one pair at a time.

Each function carries the name of its scheme. It takes the scheme (for its weights alone), the query and the key of one
head, the head, and the slots i and j, and returns the logit up to a term that is the same for all keys of a query.
"""

import math
from collections.abc import Callable
from typing import Any

from torch import Tensor

Definition = Callable[[Any, Tensor, Tensor, int, int, int], float]


def rotary(scheme: Any, q: Tensor, k: Tensor, head: int, i: int, j: int) -> float:
    """Su et al. 2021, equations 13 to 16: plane c of query i and key j turned by i theta_c and j theta_c."""
    del head
    width, total = scheme.width, 0.0
    for c in range(width // 2):
        a, b = (c, c + width // 2) if scheme.layout == "halves" else (2 * c, 2 * c + 1)
        theta = scheme.base ** (-2 * c / width)
        one, other = (complex(float(x[a]), float(x[b])) for x in (q, k))
        turned = [z * complex(math.cos(at * theta), math.sin(at * theta)) for z, at in ((one, i), (other, j))]
        total += (turned[0] * turned[1].conjugate()).real
    total += float(q[width:] @ k[width:])
    return total / math.sqrt(len(q))


def alibi(scheme: Any, q: Tensor, k: Tensor, head: int, i: int, j: int) -> float:
    """Press et al. 2022, section 3: minus m_h times the distance; m_1, m_2, ... fall by powers of 2^(-8/n)."""
    count = len(scheme.slopes)
    power = 1
    while 2 * power <= count:
        power *= 2
    # Beyond a power of two come the odd ones of the next power's.
    exponent = 8 * (head + 1) / power if head < power else 8 * (2 * (head - power) + 1) / (2 * power)
    return float(q @ k) / math.sqrt(len(q)) - 2.0**-exponent * abs(i - j)


def t5_bias(scheme: Any, q: Tensor, k: Tensor, head: int, i: int, j: int) -> float:
    """Raffel et al. 2020: 32 buckets; half of a direction's hold one distance, the others grow up to 128."""
    relative, count, offset = j - i, 32, 0
    if scheme.heads.causal:
        relative = min(relative, 0)
    else:
        count //= 2
        offset = count if relative > 0 else 0
    distance, exact = abs(relative), count // 2
    if distance >= exact:
        steps = math.log(distance / exact) / math.log(128 / exact) * (count - exact)
        distance = min(exact + int(steps + 1e-9), count - 1)  # distances such as 64 lie exactly on an edge
    return float(q @ k) / math.sqrt(len(q)) + float(scheme.table[head, offset + distance])


def shaw_keys(scheme: Any, q: Tensor, k: Tensor, head: int, i: int, j: int) -> float:
    """Shaw et al. 2018, equation 4: the key plus row clip(j - i, -16, 16) + 16 of the table."""
    del head
    return float(q @ (k + scheme.table[max(-16, min(16, j - i)) + 16])) / math.sqrt(len(q))


def transformer_xl(scheme: Any, q: Tensor, k: Tensor, head: int, i: int, j: int) -> float:
    """Dai et al. 2019, section 3.3: (q + u) . k + (q + v) . W_R r_{i-j}, r all sines before all cosines."""
    width = scheme.dim
    angles = [(i - j) * 10000.0 ** (-2 * c / width) for c in range(width // 2)]
    r = q.new_tensor([math.sin(x) for x in angles] + [math.cos(x) for x in angles])
    content = (q + scheme.content[head]) @ k
    return float(content + (q + scheme.distance[head]) @ (r @ scheme.relative[head])) / math.sqrt(len(q))


def quadratic(scheme: Any, q: Tensor, k: Tensor, head: int, i: int, j: int) -> float:
    """Cordonnier et al. 2020: v . r_delta with r_delta = (delta^2, delta) and v = -alpha (1, -2 centre)."""
    delta, alpha, centre = j - i, float(scheme.alpha[head]), float(scheme.centre[head])
    return float(q @ k) / math.sqrt(len(q)) - alpha * delta**2 + 2 * alpha * centre * delta


DEFINITIONS: dict[str, Definition] = {
    each.__name__: each for each in (rotary, alibi, t5_bias, shaw_keys, transformer_xl, quadratic)
}

"""Averages under weights phi(q_i) . phi(k_j) exp(w_j), in time that is linear in the length.

In: q (batch, heads, queries, dim), k (batch, kv_heads, keys, dim), v (batch, kv_heads, keys, value), names of feature
maps with their projection (kv_heads, rows, dim), a log weight for every key, a key mask, the sums before these keys.
Out: `Averaged`: values (batch, heads, queries, value), their normaliser `total` with its scale, and `sum`
(batch, kv_heads, features, value + 1) behind the last key with its scale `top`; differentiable once.

- `engine.kernel_average`: causal and not, whole or after a state; features are made chunk by chunk, also backwards.
- `channels.average_by_channel`: weights that are a softmax over the keys for every channel of k.
- `step`: one token, by plain torch. `forms`: the quadratic and the recurrent form of the same sum.

Promised: sums in float32 at least, with a running maximum where weights grow; no epsilon: a row without weight gives 0.
"""

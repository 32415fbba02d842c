    T kept[KEPT], delta = 0;
    for (int s = 0; s < KEPT; ++s) kept[s] = 0;
    for (i64 j = lane; j < width; j += LANES) delta += (T)widened(grad.data[j * grad_next]) * (T)widened(out.data[j * out_next]);
    delta = row_sum(delta);
    const i64 last = causal ? minimum(keys, (i64)row % queries + 1) : keys;
    for (i64 k = 0; k < last; ++k) {
        T score = 0, along = 0;
        for_each(j) score += (T)query(j) * (T)widened(key.data[k * key_step + (i64)j * key_next]);
        for (i64 j = lane; j < width; j += LANES) along += (T)widened(grad.data[j * grad_next]) * (T)widened(value.data[k * value_step + j * value_next]);
        const T p = exp(row_sum(score) * (T)scale - (T)sums(0)), d = p * (row_sum(along) - delta) * (T)scale;
#pragma unroll
        for (int s = 0; s < KEPT; ++s) {
            const i64 j = (i64)lane + (i64)s * LANES;
            if (j < n) kept[s] += d * (T)widened(key.data[k * key_step + j * key_next]);
        }
    }
#pragma unroll
    for (int s = 0; s < KEPT; ++s) {
        const I j = lane + (I)s * LANES;
        if (j < n) grad_query.set(kept[s], j);
    }

    T kept[KEPT], top = -INFINITY, total = 0;
    for (int s = 0; s < KEPT; ++s) kept[s] = 0;
    const i64 last = causal ? minimum(keys, (i64)row % queries + 1) : keys;
    for (i64 k = 0; k < last; ++k) {
        T score = 0;
        for_each(j) score += (T)query(j) * (T)widened(key.data[k * key_step + (i64)j * key_next]);
        score = row_sum(score) * (T)scale;
        const T up = maximum(top, score), fades = exp(top - up), p = exp(score - up);
        total = total * fades + p;
        top = up;
#pragma unroll
        for (int s = 0; s < KEPT; ++s) {
            const i64 j = (i64)lane + (i64)s * LANES;
            if (j < width) kept[s] = kept[s] * fades + p * (T)widened(value.data[k * value_step + j * value_next]);
        }
    }
#pragma unroll
    for (int s = 0; s < KEPT; ++s) {
        const i64 j = (i64)lane + (i64)s * LANES;
        if (j < width) out.data[j * out_next] = Narrow<O>::from(kept[s] / total);
    }

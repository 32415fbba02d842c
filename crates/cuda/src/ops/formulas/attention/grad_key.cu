    T of_key[KEPT], of_value[KEPT];
    for (int s = 0; s < KEPT; ++s) of_key[s] = of_value[s] = 0;
    for (i64 head = 0; head < heads; ++head)
        for (i64 q = causal ? (i64)row % keys : 0; q < queries; ++q) {
            T score = 0, along = 0, delta = 0;
            for_each(j) score += (T)key(j) * (T)widened(query.data[head * query_head + q * query_step + (i64)j * query_next]);
            for (i64 j = lane; j < width; j += LANES) {
                const T g = (T)widened(grad.data[head * grad_head + q * grad_step + j * grad_next]);
                along += g * (T)widened(value.data[j * value_next]);
                delta += g * (T)widened(out.data[head * out_head + q * out_step + j * out_next]);
            }
            const T p = exp(row_sum(score) * (T)scale - (T)widened(sums.data[head * sums_head + q * sums_step]));
            const T d = p * (row_sum(along) - row_sum(delta)) * (T)scale;
#pragma unroll
            for (int s = 0; s < KEPT; ++s) {
                const i64 j = (i64)lane + (i64)s * LANES;
                if (j < n) of_key[s] += d * (T)widened(query.data[head * query_head + q * query_step + j * query_next]);
                if (j < width) of_value[s] += p * (T)widened(grad.data[head * grad_head + q * grad_step + j * grad_next]);
            }
        }
#pragma unroll
    for (int s = 0; s < KEPT; ++s) {
        const i64 j = (i64)lane + (i64)s * LANES;
        if (j < n) grad_key.set(of_key[s], (I)j);
        if (j < width) grad_value.data[j * grad_value_next] = Narrow<O>::from(of_value[s]);
    }

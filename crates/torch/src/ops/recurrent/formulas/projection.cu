
    for (I q = warp; q < outputs; q += warps) {
        T sum[S] = {};
        for (I k = at; k < units; k += WARP) {
            const T w = w_hr(q, k);
#pragma unroll
            for (int s = 0; s < S; ++s) if (s < count) sum[s] += w * hidden(t, first + s, k);
        }
#pragma unroll
        for (int s = 0; s < S; ++s) if (s < count) {
            const T h = warp_sum(sum[s]);
            if (at == 0) {
                out.set(h, t, first + s, q);
                if (is_last) hn.set(h, 0, first + s, q);
            }
        }
    }
    row_sync();

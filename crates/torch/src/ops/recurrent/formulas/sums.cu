T sum[S] = {};
            for (I k = at; k < length; k += WARP) {
                const T w = $matrix$(u, k);
#pragma unroll
                for (int s = 0; s < S; ++s) if (s < count) sum[s] += w * $vectors$($time$, first + s, k);
            }
#pragma unroll
            for (int s = 0; s < S; ++s) if (s < count) {
                const T total = warp_sum(sum[s]);
                const I b = first + s;
                if (at == 0) {
                    $then$
                }
            }

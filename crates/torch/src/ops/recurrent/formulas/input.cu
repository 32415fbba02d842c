
    for (I k = at; k < inputs; k += WARP) {
        T w[GATES];
#pragma unroll
        for (int g = 0; g < GATES; ++g) w[g] = w_ih(g * units + u, k);
#pragma unroll
        for (int s = 0; s < S; ++s) if (s < count) {
            const T value = x(t, first + s, k);
#pragma unroll
            for (int g = 0; g < GATES; ++g) in[s][g] += w[g] * value;
        }
    }
#pragma unroll
    for (int s = 0; s < S; ++s)
#pragma unroll
        for (int g = 0; g < GATES; ++g) in[s][g] = warp_sum(in[s][g]);

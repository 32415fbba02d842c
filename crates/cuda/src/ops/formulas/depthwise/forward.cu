    const I height = (I)x.size(2), width = (I)x.size(3), down = (I)y.size(2), across = (I)y.size(3);
    const E* const from = x.data + ((i64)i[0] * x.size(1) + i[1] / MULTIPLIER) * height * width;
    E* const into = y.data + ((i64)i[0] * y.size(1) + i[1]) * down * across;
    T taps[TAPS];
#pragma unroll
    for (int t = 0; t < TAPS; ++t) taps[t] = widened(w.data[i[1] * TAPS + t]);
    for (I piece = part * LANES + lane; piece < (I)pieces; piece += parts * LANES) {
        const I strip = (I)quotient((u32)piece, (u64)by_width), column = piece - strip * across, top = strip * R;
        T s[R];
#pragma unroll
        for (int r = 0; r < R; ++r) s[r] = 0;
#pragma unroll
        for (int j = 0; j <= (R - 1) * SH + (KH - 1) * DH; ++j) {
            const I h = top * SH - PH + j;
            const bool is_row = h >= 0 && h < height;
            T value[KW];
#pragma unroll
            for (int kx = 0; kx < KW; ++kx) {
                const I v = column * SW - PW + kx * DW;
                value[kx] = is_row && v >= 0 && v < width ? widened(from[h * width + v]) : (T)0;
            }
#pragma unroll
            for (int r = 0; r < R; ++r) {
#pragma unroll
                for (int t = 0; t < TAPS; ++t) {
                    if (r * SH + t / KW * DH == j) s[r] += value[t % KW] * taps[t];
                }
            }
        }
#pragma unroll
        for (int r = 0; r < R; ++r) {
            if (top + r < down) into[(top + r) * across + column] = Narrow<E>::from(s[r]);
        }
    }

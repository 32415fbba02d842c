    const I height = (I)x.size(2), width = (I)x.size(3), down = (I)y.size(2), across = (I)y.size(3);
    const E* const from = y.data + ((i64)i[0] * y.size(1) + (i64)i[1] * MULTIPLIER) * down * across;
    E* const into = x.data + ((i64)i[0] * x.size(1) + i[1]) * height * width;
    const auto* const windows = w.data + (i64)i[1] * MULTIPLIER * TAPS;
    T taps[TAPS];
#pragma unroll
    for (int t = 0; t < TAPS; ++t) taps[t] = widened(windows[t]);
    for (I piece = part * LANES + lane; piece < (I)pieces; piece += parts * LANES) {
        const I strip = (I)quotient((u32)piece, (u64)by_width), column = piece - strip * width, top = strip * R;
        T s[R];
#pragma unroll
        for (int r = 0; r < R; ++r) s[r] = 0;
        for (int m = 0; m < MULTIPLIER; ++m) {
            const E* const plane = from + (i64)m * down * across;
            // Of several windows for a channel none stays in registers.
            if (MULTIPLIER > 1) {
#pragma unroll
                for (int t = 0; t < TAPS; ++t) taps[t] = widened(windows[m * TAPS + t]);
            }
#pragma unroll
            for (int j = FIRST; j <= LAST; ++j) {
                const I h = strip * (R / SH) + j;
                const bool is_row = h >= 0 && h < down;
                T value[KW];
#pragma unroll
                for (int kx = 0; kx < KW; ++kx) {
                    const I v = column + PW - kx * DW;
                    const bool is_any = is_row && v >= 0 && v % SW == 0 && v / SW < across;
                    value[kx] = is_any ? widened(plane[h * across + v / SW]) : (T)0;
                }
#pragma unroll
                for (int r = 0; r < R; ++r) {
#pragma unroll
                    for (int t = 0; t < TAPS; ++t) {
                        if (r + PH - t / KW * DH == j * SH) s[r] += value[t % KW] * taps[t];
                    }
                }
            }
        }
#pragma unroll
        for (int r = 0; r < R; ++r) {
            if (top + r < height) into[(top + r) * width + column] = Narrow<E>::from(s[r]);
        }
    }

    const I height = (I)x.size(2), width = (I)x.size(3), down = (I)y.size(2), across = (I)y.size(3);
    const I count = (I)x.size(0) * (I)pieces;
    if (part >= PARTS) return;
    T s[TAPS];
#pragma unroll
    for (int t = 0; t < TAPS; ++t) s[t] = 0;
    for (I each = part * LANES + lane; each < count; each += PARTS * LANES) {
        const I n = (I)quotient((u32)each, (u64)by_pieces), piece = each - n * (I)pieces;
        const I strip = (I)quotient((u32)piece, (u64)by_width), column = piece - strip * across, top = strip * R;
        const E* const from = x.data + ((i64)n * x.size(1) + i[1] / MULTIPLIER) * height * width;
        const E* const plane = y.data + ((i64)n * y.size(1) + i[1]) * down * across;
        T grad[R];
#pragma unroll
        for (int r = 0; r < R; ++r) grad[r] = top + r < down ? widened(plane[(top + r) * across + column]) : (T)0;
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
                    if (r * SH + t / KW * DH == j) s[t] += value[t % KW] * grad[r];
                }
            }
        }
    }
#pragma unroll
    for (int t = 0; t < TAPS; ++t) {
        const T whole = warp_sum(s[t]);
        if (lane == 0) {
            const I to[3] = {part, i[1], (I)t};
            w.set_at(whole, to);
        }
    }

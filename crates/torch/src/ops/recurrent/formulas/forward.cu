
    const int GATES = $gates$;
    const i64 batch = out.size(1);
    const I steps = (I)out.size(0), outputs = (I)out.size(2), units = (I)(w_hh.size(0) / GATES)$inputs_length$;
    $SHARES$
    for (I step = 0; step < steps; ++step) {
        const I t = backwards ? steps - 1 - step : step, before = step == 0 ? 0 : backwards ? t + 1 : t - 1;
        const auto states = [&](I at, I b, I u) { return step == 0 ? (T)hx(at, b, u) : (T)out(at, b, u); };
        const bool is_last = step == steps - 1;
        for (I u = warp; u < units; u += warps) {
            T in[S][GATES] = {}, re[S][GATES] = {};
            $input$
            for (I k = at; k < outputs; k += WARP) {
                T w[GATES];
#pragma unroll
                for (int g = 0; g < GATES; ++g) w[g] = w_hh(g * units + u, k);
#pragma unroll
                for (int s = 0; s < S; ++s) if (s < count) {
                    const T value = states(before, first + s, k);
#pragma unroll
                    for (int g = 0; g < GATES; ++g) re[s][g] += w[g] * value;
                }
            }
#pragma unroll
            for (int s = 0; s < S; ++s) if (s < count) {
                const I b = first + s;
#pragma unroll
                for (int g = 0; g < GATES; ++g) {
                    re[s][g] = warp_sum(re[s][g]);
                    $biases$
                }
                if (at == 0) {
                    $update$
                    $keep$
                    $store$
                }
            }
        }
        row_sync();
        $projection$
    }


    const int GATES = $gates$;
    const i64 batch = gates.size(1);
    const I steps = (I)gates.size(0), outputs = (I)w_t.size(0), units = (I)(gates.size(2) / GATES);
    $SHARES$
    for (I step = steps - 1; step >= 0; --step) {
        const I t = backwards ? steps - 1 - step : step, after = backwards ? t - 1 : t + 1;
        const I before = step == 0 ? 0 : backwards ? t + 1 : t - 1;
        const auto states = [&](I at, I b, I u) { return step == 0 ? (T)hx(at, b, u) : (T)out(at, b, u); };
        const bool is_last = step == steps - 1;
        (void)after; (void)before; (void)states;
        $projected$
        for (I u = warp; u < units; u += warps) {
            const I length = $length$;
            $of_hidden$
        }
        row_sync();
    }
    const I after = backwards ? steps - 1 : 0;
    for (I u = warp; u < outputs; u += warps) {
        const I length = GATES * units;
        $of_first$
    }

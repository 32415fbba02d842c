
    if (is_first && n > 0) {
        I best = 0, most = 0;
        for (I j = 0; j < n; ++j) {
            I times = 0;
            for (I k = 0; k < n; ++k) times += x(k) == x(j);
            if (times > most || times == most && x(j) <= x(best)) { best = j; most = times; }
        }
        y.set(x(best), 0);
        at.set((i64)best, 0);
    }

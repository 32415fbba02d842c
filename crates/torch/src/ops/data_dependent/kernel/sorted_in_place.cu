const i64 n = x.size(0);
    for (i64 run = 2; run < 2 * n; run *= 2)
        for (i64 step = run / 2; step > 0; step /= 2) {
            for (i64 low = lane; low < n; low += LANES) {
                const i64 in_run = low & (run - 1);
                const i64 high = step == run / 2 ? low - in_run + run - 1 - in_run : low + step;
                if ((step == run / 2 ? in_run >= run / 2 : (low & step) != 0) || high >= n) continue;
                const auto a = x(low), b = x(high);
                if (ordered(a) > ordered(b)) { x.set(b, low); x.set(a, high); }
            }
            row_wait();
        }

const I n = (I)$n$, count = (I)$count$;
    if (count > 64 && n <= 4096) {
        for (I j = lane; j < n; j += LANES) {
            i[$d$] = j; const auto value = x.at(i); const i64 own = ordered(value);
            I rank = 0;
            for (I k = 0; k < n; ++k) {
                i[$d$] = k; const i64 other = ordered(x.at(i));
                rank += other == own ? k < j : largest ? other > own : other < own;
            }
            if (rank < count) { i[$d$] = rank; values.set_at(value, i); places.set_at(j, i); }
        }
        return;
    }
    i64 last = 0, last_at = -1;
    for (I chosen = 0; chosen < count; ++chosen) {
        i64 best = 0, best_at = n;
        for (I j = lane; j < n; j += LANES) {
            i[$d$] = j; const i64 key = largest ? -ordered(x.at(i)) : ordered(x.at(i));
            const bool is_left = chosen == 0 || key > last || key == last && j > last_at;
            if (is_left && (best_at == n || key < best)) { best = key; best_at = j; }
        }
        const i64 key = row_min(best_at == n ? 0x7fffffffffffffffll : best);
        const i64 at = row_min(best_at < n && best == key ? best_at : (i64)n);
        last = key; last_at = at;
        if (lane == 0) {
            i[$d$] = (I)wrapped(at, n); const auto value = x.at(i);
            i[$d$] = chosen; values.set_at(value, i); places.set_at(at, i);
        }
    }

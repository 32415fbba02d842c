const I n = (I)$n$;
    for (I j = lane; j < n; j += LANES) { i[$d$] = j; places.set_at(j, i); }
    row_wait();
    for (i64 run = 2; run < 2 * (i64)n; run *= 2)
        for (i64 step = run / 2; step > 0; step /= 2) {
            for (I pair = lane; pair < (n + 1) / 2 * 2; pair += LANES) {
                // The first step of a run compares with its mirror image.
                const i64 in_run = pair & (run - 1), low = pair;
                const i64 high = step == run / 2 ? pair - in_run + run - 1 - in_run : pair + step;
                if ((step == run / 2 ? in_run >= run / 2 : (pair & step) != 0) || high >= n) continue;
                i[$d$] = (I)low; const i64 at_low = places.at(i);
                i[$d$] = (I)high; const i64 at_high = places.at(i);
                i[$d$] = (I)wrapped(at_low, n); const i64 a = ordered(x.at(i));
                i[$d$] = (I)wrapped(at_high, n); const i64 b = ordered(x.at(i));
                if (a == b ? at_low > at_high : descending ? a < b : a > b) {
                    i[$d$] = (I)low; places.set_at(at_high, i);
                    i[$d$] = (I)high; places.set_at(at_low, i);
                }
            }
            row_wait();
        }
    for (I j = lane; j < n; j += LANES) {
        i[$d$] = j; const i64 at = places.at(i);
        i[$d$] = (I)wrapped(at, n); const auto value = x.at(i);
        i[$d$] = j; values.set_at(value, i);
    }

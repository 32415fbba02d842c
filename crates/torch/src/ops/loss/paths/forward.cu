$SAMPLE$$lengths$
    const i64 last = 2 * count;$EMPTY$
    for (i64 t = 0; t < time; ++t) {
        for (i64 s = lane; s <= last; s += LANES) {
            T sum;
            if (t == 0) sum = s < 2 ? (T)0 : -INFINITY;
            else {
                const auto before = table.data + (t - 1) * states;
                const T a = widened(before[s]), b = s > 0 ? (T)widened(before[s - 1]) : -INFINITY;
                const T c = s > 1 && label(s) != label(s - 2) ? (T)widened(before[s - 2]) : -INFINITY;
                $LOG_SUM$
                sum = log(exp(a - top) + exp(b - top) + exp(c - top)) + top;
            }
            table.data[t * states + s] = sum + score(t, label(s));
        }
        row_sync();
    }
    if (is_first) {
        T a = time == 0 && count == 0 ? (T)0 : -INFINITY, b = -INFINITY;
        const T c = -INFINITY;
        if (time > 0) {
            a = widened(table.data[(time - 1) * states + last]);
            if (count > 0) b = widened(table.data[(time - 1) * states + last - 1]);
        }
        $LOG_SUM$
        loss.set(-(log(exp(a - top) + exp(b - top)) + top), 0);
    }

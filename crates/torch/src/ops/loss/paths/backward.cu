$SAMPLE$$READ$
    const i64 last = 2 * count;
    for (i64 t = time - 1; t >= 0; --t) {
        for (i64 s = lane; s <= last; s += LANES) {
            T sum;
            if (t == time - 1) sum = s + 2 > last ? (T)0 : -INFINITY;
            else {
                const auto behind = ends.data + (t + 1) * states;
                const T a = widened(behind[s]), b = s < last ? (T)widened(behind[s + 1]) : -INFINITY;
                const T c = s + 1 < last && label(s) != label(s + 2) ? (T)widened(behind[s + 2]) : -INFINITY;
                $LOG_SUM$
                sum = log(exp(a - top) + exp(b - top) + exp(c - top)) + top;
            }
            ends.data[t * states + s] = sum + score(t, label(s));
        }
        row_sync();
    }
    const T g = (T)grad(0), negative = (T)loss(0);
    const bool counts = !(zero_infinity && negative == INFINITY);
    for (i64 t = 0; t < times; ++t)
        for (i64 k = lane; k < classes; k += LANES) {
            T value = 0;
            if (t < time && counts) {
                T most = -INFINITY, total = 0;
                for (i64 s = k == blank ? 0 : 1; s <= last; s += 2)
                    if (label(s) == k) {
                        const T both = (T)widened(table.data[t * states + s]) + (T)widened(ends.data[t * states + s]);
                        if (both > most) { total = total * (most == -INFINITY ? (T)0 : exp(most - both)) + 1; most = both; }
                        else if (both != -INFINITY) total += exp(both - most);
                    }
                const T own = score(t, k);
                value = (exp(own) - (most == -INFINITY ? (T)0 : exp(most + log(total) + negative - own))) * g;
            }
            grad_x.data[t * grad_time + k * grad_class] = value;
        }

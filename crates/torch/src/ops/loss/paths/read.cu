
    i64 time = 0, count = 0;
    for (i64 k = joined ? 0 : row; k <= row; ++k) {
        const auto own = table.data - (row - k) * times * states;
        i64 s = 0;
        while (s + 2 < states && !is_nan(widened(own[s + 2]))) s += 2;
        count = s / 2;
        if (k < row) start += count;
    }
    if (times > 0 && table(0) != INFINITY) time = 1;
    while (time > 0 && time < times && !is_nan(widened(table.data[time * states]))) ++time;

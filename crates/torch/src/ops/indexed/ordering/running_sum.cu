const I chunk = (n + LANES - 1) / LANES;
    const I begin = lane * chunk < n ? lane * chunk : n, end = begin + chunk < n ? begin + chunk : n;
    T sum = 0;
    for (I j = begin; j < end; ++j) sum += (T)x(reversed ? n - 1 - j : j);
    T total = row_before(sum, (T)0);
    for (I j = begin; j < end; ++j) {
        const I at = reversed ? n - 1 - j : j;
        total += (T)x(at);
        y.set(total, at);
    }

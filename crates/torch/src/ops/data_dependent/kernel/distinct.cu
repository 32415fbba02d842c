$CHUNK$
    for (i64 j = begin; j < end; ++j) own += j == 0 || ordered(x.flat(j)) != ordered(x.flat(j - 1));
    i64 at = row_before(own, (i64)0);
    const i64 all = row_sum(own);
    for (i64 j = begin; j < end; ++j) {
        const auto value = x.flat(j);
        if (j == 0 || ordered(value) != ordered(x.flat(j - 1))) { whole.set(value, at); $many$ ++at; }
        $places$
    }
    for (i64 k = all + lane; k < n; k += LANES) { whole.set(x.flat(n - 1), k); $no_more$ }

$CHUNK$
    for (i64 j = begin; j < end; ++j) own += x.flat(j) != 0;
    i64 at = row_before(own, (i64)0);
    const i64 all = row_sum(own), rows = places.size(0);
    for (i64 j = begin; j < end; ++j) {
        if (x.flat(j) == 0) continue;
        for (i64 k = at; k < rows; k += all) {
            i64 left = j;
            for (int d = $rank$ - 1; d >= 0; --d) { places.set(left % x.size(d), k, d); left /= x.size(d); }
            if (!repeats) break;
        }
        ++at;
    }
    if (all == 0 || !repeats)
        for (i64 k = all + lane; k < rows; k += LANES)
            for (int d = 0; d < $rank$; ++d) places.set(repeats ? 0 : NOWHERE, k, d);

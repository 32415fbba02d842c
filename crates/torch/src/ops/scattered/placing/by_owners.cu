const I n = (I)$count$, rows = $rows$, features = $features$;
    const I blocks = (features + 31) / 32, across = blocks < 1 ? 1 : blocks < parts ? blocks : parts, down = parts / across;
    const I own_row = part / across, own_block = part % across;
    if (own_row >= down) return;
    const I low = (I)((i64)rows * own_row / down), high = (I)((i64)rows * (own_row + 1) / down);
    const I first = (I)((i64)blocks * own_block / across) * 32, behind = (I)((i64)blocks * (own_block + 1) / across) * 32;
    const I end = behind < features ? behind : features;
    I to[$into_rank$] = {}, of[$values_rank$] = {}; (void)of; $own$
    for (I base = first; base < end; base += LANES) {
        const I feature = base + lane; const bool is_any = feature < end; (void)feature;
        $of_feature$
        I row = -1; T sum = 0;
        // Several indices and several elements are on their way at once.
        for (I start = 0; start < n; start += 4 * LANES) {
            i64 place[4];
#pragma unroll
            for (int u = 0; u < 4; ++u) {
                place[u] = NOWHERE;
                i[$along$] = start + u * LANES + lane;
                if (i[$along$] < n) { place[u] = $index$; if (place[u] < 0) place[u] += rows; }
            }
            for (int u = 0; u < 4; ++u) {
                const i64 own = u == 0 ? place[0] : u == 1 ? place[1] : u == 2 ? place[2] : place[3];
                u32 found = row_vote(own >= low && own < high && own != skipped);
                while (found != 0) {
                    I next[8]; T element[8];
#pragma unroll
                    for (int v = 0; v < 8; ++v) {
                        next[v] = -1; element[v] = 0;
                        if (found == 0) continue;
                        const int which = lowest_bit(found);
                        found &= found - 1;
                        next[v] = (I)row_from(own, which);
                        of[$values_along$] = start + u * LANES + which;
                        if (is_any) element[v] = $value$;
                    }
                    if (!is_any) continue;
#pragma unroll
                    for (int v = 0; v < 8; ++v) {
                        if (next[v] < 0) continue;
                        if (next[v] != row) {
                            if (row >= 0) into.set_at(sum, to);
                            row = next[v];
                            $of_row$
                            sum = into.at(to);
                        }
                        sum = $combined$;
                    }
                }
            }
        }
        if (row >= 0) into.set_at(sum, to);
    }

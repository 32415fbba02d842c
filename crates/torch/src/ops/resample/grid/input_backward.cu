const i64 all = $elements$, n = $count$, low = all * part / parts, high = all * (part + 1) / parts;
if (low == high) return;
I at[$rank$], of[$rank$]; at[0] = of[0] = i[0];
for (i64 start = 0; start < n; start += LANES) {
    bool is_mine = false;
    if (start + lane < n) {
        i64 left = start + lane; $of_place$
        $places$
        $is_mine$
    }
    for (u32 found = row_vote(is_mine); found != 0; found &= found - 1) {
        i64 left = start + lowest_bit(found); $of_place$
        $places$
        for (I c = lane; c < (I)x.size(1); c += LANES) {
            at[1] = of[1] = c; const T incoming = (T)grad.at(of);
            $adds$
        }
    }
}

I at[$size$]; for (int d = 0; d < $last$; ++d) at[d] = i[d];
const auto own = values.at(i); i64 low = 0, high = sorted.size($last$);
while (low < high) {
    const i64 middle = (low + high) / 2; at[$last$] = (I)middle; const auto other = sorted.at(at);
    if (right ? !(other > own) : !(other >= own)) low = middle + 1; else high = middle;
}
places.set_at(low, i);

const i64 n = x.count(), bins = y.size(0);
T first = (T)low, last = (T)high;
if (first == last && n > 0) {
    first = last = (T)x.flat(0);
    for (i64 j = lane; j < n; j += LANES) { const T value = (T)x.flat(j); first = minimum(first, value); last = maximum(last, value); }
    first = row_min(first); last = row_max(last);
}
if (first == last) { first -= 1; last += 1; }
i64 count = 0;
for (i64 j = lane; j < n; j += LANES) {
    const T value = (T)x.flat(j);
    if (!(value >= first && value <= last)) continue;
    i64 bin = (i64)((value - first) * (T)bins / (last - first));
    if (bin == bins) --bin;
    count += bin == (i64)i[0];
}
count = row_sum(count);
if (lane == 0) y.set_at((T)count, i);

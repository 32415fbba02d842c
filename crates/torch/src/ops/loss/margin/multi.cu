const I n = (I)x.size($rank$); const i64 label = wrapped($label$, n); const T own = (T)x($own$); T sum = 0;
for (I j = 0; j < n; ++j) {
    const T z = (T)margin - own + (T)x($class$);
    if (j != label && z > 0) sum += power == 1 ? z : z * z;
}
loss.set(sum$weight$ / (T)n$loss$);

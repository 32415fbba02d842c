const I n = (I)x.size($rank$); T sum = 0;
for (I j = 0; j < n; ++j) is_target.set((T)0, $class$);
for (I k = 0; k < n && t($k$) >= 0; ++k) is_target.set((T)1, $of_label$);
for (I k = 0; k < n && t($k$) >= 0; ++k) {
    const T own = (T)x($of_label$);
    for (I j = 0; j < n; ++j) if (is_target($class$) == 0) sum += maximum((T)1 - own + (T)x($class$), (T)0);
}
loss.set(sum / (T)n$loss$);

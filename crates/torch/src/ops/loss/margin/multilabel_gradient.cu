const I n = (I)x.size($rank$); const T g = $incoming$ / (T)n;
for (I j = 0; j < n; ++j) {
    T sum = 0;
    if (is_target($class$) != 0) {
        I times = 0; T others = 0;
        for (I k = 0; k < n && t($k$) >= 0; ++k) times += wrapped(t($k$), n) == j;
        for (I k = 0; k < n; ++k) if (is_target($k$) == 0 && (T)1 - (T)x($class$) + (T)x($k$) > 0) others += 1;
        sum = -others * (T)times;
    } else
        for (I k = 0; k < n && t($k$) >= 0; ++k)
            if ((T)1 - (T)x($of_label$) + (T)x($class$) > 0) sum += 1;
    grad_x.set(sum * g, $class$);
}

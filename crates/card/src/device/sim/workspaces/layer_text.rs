//! Layers as tables write them.

use crate::program::ConvolutionLayer;

/// The numbers of a layer, in the order of a table's `layer` lines.
pub fn layer_text(layer: &ConvolutionLayer) -> String {
    let mut numbers = vec![layer.in_channels, layer.out_channels, layer.groups];
    let pairs = [
        layer.input,
        layer.kernel,
        layer.stride,
        layer.padding,
        layer.dilation,
    ];
    let first = usize::from(!layer.volumes);
    numbers.extend(
        pairs
            .into_iter()
            .flat_map(|sides| sides.into_iter().skip(first)),
    );
    numbers.push(u64::from(layer.transposed));
    // Last and only where they say something: most tables were recorded without them.
    let extra = layer.volumes || layer.output_padding != [0; 3];
    if layer.channels_last || extra {
        numbers.push(u64::from(layer.channels_last));
    }
    if extra {
        numbers.extend(layer.output_padding.into_iter().skip(first));
    }
    numbers
        .iter()
        .map(u64::to_string)
        .collect::<Vec<_>>()
        .join(",")
}

/// The numbers of a volume.
const MOST_NUMBERS: usize = 23;

/// Reads the numbers of a layer: channels in and out, groups, then the sides of input, kernel, stride, padding and dilation, then 1 for a
/// transposed convolution, 1 for channels-last tensors, and what is added to the sides of the output. Planes
/// have two sides and may lack the last one or two of these: 14, 15 or 17 numbers. Volumes have three: 23.
pub fn parse_layer(text: &str) -> Option<ConvolutionLayer> {
    let mut numbers = [0_u64; MOST_NUMBERS];
    let mut count = 0;
    for number in text.split(',') {
        *numbers.get_mut(count)? = number.parse().ok()?;
        count += 1;
    }
    let volumes = match count {
        14 | 15 | 17 => false,
        MOST_NUMBERS => true,
        _ => return None,
    };
    let mut numbers = numbers.into_iter();
    let mut next = || numbers.next();
    let [in_channels, out_channels, groups] = [next()?, next()?, next()?];
    let mut sides = |flat: u64| {
        let depth = if volumes { next()? } else { flat };
        Some([depth, next()?, next()?])
    };
    Some(ConvolutionLayer {
        in_channels,
        out_channels,
        groups,
        input: sides(1)?,
        kernel: sides(1)?,
        stride: sides(1)?,
        padding: sides(0)?,
        dilation: sides(1)?,
        transposed: next()? == 1,
        channels_last: next()? == 1,
        output_padding: {
            let depth = if volumes { next()? } else { 0 };
            [depth, next()?, next()?]
        },
        volumes,
    })
}

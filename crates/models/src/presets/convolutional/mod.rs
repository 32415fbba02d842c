//! Classifiers made of convolutions.

pub(super) mod convnext;
pub(super) mod densenet;
pub(super) mod efficientnet;
pub(super) mod googlenet;
pub(super) mod inception;
pub(super) mod mnasnet;
pub(super) mod mobilenet;
pub(super) mod regnet;
pub(super) mod resnet;
pub(super) mod shufflenet;
pub(super) mod squeezenet;
pub(super) mod vgg;
